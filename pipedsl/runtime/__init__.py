"""The executor: runs the calls of a compiled schedule with torch.distributed.

`pipedsl.emit` copies these modules into the generated file, so they import torch, the standard library and each
other, and no two of them may define the same name.
"""
