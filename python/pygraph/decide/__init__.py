"""What is made, kept and used."""
