"""How a job is run by others than its author: images, manifests, configuration, a local cluster."""
