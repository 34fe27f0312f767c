"""What generates the responses; each engine loads its library only when it is made."""
