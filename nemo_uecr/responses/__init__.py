"""One table of responses: a row is a response, a Parquet file is a saved batch, an evaluation or a part of either."""
