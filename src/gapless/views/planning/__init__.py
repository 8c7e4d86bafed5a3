"""How is a view computed? Rewritten, cut into stages, and joined with the stages of all other views."""
