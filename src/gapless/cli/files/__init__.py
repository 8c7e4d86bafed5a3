"""How commands read files: rows of JSON, CSV, Parquet and XML, and the types of their cells."""
