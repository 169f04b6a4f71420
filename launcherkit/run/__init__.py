"""Defines domains and keeps guests, by libvirt."""
