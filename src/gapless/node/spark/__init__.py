"""What starts Spark for a node, and keeps it running while the network has views."""
