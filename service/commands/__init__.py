"""Commands of `attention`: one file each. To add one, write the file and name it in `service.cli`."""
