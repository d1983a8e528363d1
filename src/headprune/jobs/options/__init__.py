"""What can be asked of each job: frozen dataclasses, quick to import. The command line makes its options of them."""
