"""Two recordings of devices against each other, whoever made the devices."""
