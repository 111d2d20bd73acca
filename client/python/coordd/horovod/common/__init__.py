"""What Horovod keeps in horovod.common: exceptions, process_sets, elastic and util."""
