#!/bin/bash
# Ten steps in a shell, and a child process for each.
echo began
for step in 1 2 3 4 5 6 7 8 9 10; do
	sleep 0.5
	echo "step $step"
done
