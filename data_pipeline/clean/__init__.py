"""What is changed in documents, and which are left out and why, before any of them is counted or stored."""
