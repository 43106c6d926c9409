"""Components of a transformer layer, written for one device. Each weight names how it may be split over ranks."""
