"""What the harness itself costs, and checks that microp works here."""
