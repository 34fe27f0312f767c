"""What both back ends do with a step: each row's teacher, the record that the methods read, and the metrics."""
