"""One process, CPU or one GPU: a real training loop that reads from top to bottom in `trainer`."""

#: Logits of one output-layer chunk, float32 bytes, by the kind of device: bounds memory whatever the response length.
#: A GPU takes larger ones, because each chunk reads and writes something of the output layer's size.
CHUNK_BYTES = {"cpu": 134_217_728, "cuda": 1_073_741_824}
