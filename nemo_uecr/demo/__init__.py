"""The demo: chains of arithmetic, and a student and a teacher made for them on first use."""
