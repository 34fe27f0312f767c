"""What makes text: model folders and adapters, the decode loop, and the engines that run it."""
