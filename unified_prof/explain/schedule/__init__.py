"""A recorded run as a schedule: what each thing waited for, walked back or run again otherwise."""
