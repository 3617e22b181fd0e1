"""The mathematics of self-attention: reference, eager module, ONNX export. Knows nothing of the service.

Importing this package loads neither torch nor ONNX Runtime; `models.eager` and `models.export` do.
"""
