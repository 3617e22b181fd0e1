"""The Open Inference Protocol over gRPC, on a port of its own. Imported only where it is served.

What a call means is said elsewhere: the pipeline of tensors in `service.routes.tensors`, everything else in
`service.protocol`. This package turns calls into that, and answers and errors into gRPC's.
"""
