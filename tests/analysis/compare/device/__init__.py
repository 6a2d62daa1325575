"""Tests of comparing recordings of devices."""
