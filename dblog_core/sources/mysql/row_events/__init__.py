"""Row events of the binlog: table maps, images, decoding into Arrow."""
