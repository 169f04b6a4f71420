"""Text and pictures for people: translations, failed ones, hosts and guests. Pure."""
