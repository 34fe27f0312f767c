"""Problems and models as they lie on disk, and how files and folders are written, locked, packed and read."""
