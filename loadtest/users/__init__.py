"""The kinds of users, by what they want; one file each."""
