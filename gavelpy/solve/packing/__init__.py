"""Problems in which several jobs may share GPUs: their classes, and the few columns of many that an optimum needs."""
