"""How commands print: tables that fit, and text that cannot control the terminal."""
