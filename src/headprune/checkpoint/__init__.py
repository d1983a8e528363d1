"""What is on disk: the record in the config, saving, loading, v4, the card; exports, one file each."""
