"""What travels between processes: the messages of `gavelpy.v1` and the code generated from them (`make generate`)."""
