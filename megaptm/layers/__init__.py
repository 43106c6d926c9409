"""Components of transformer layers, written for one device. Each weight names how tensor ranks may divide it."""
