"""What heads do and how scores, weights and curves compare; and pictures of it."""
