#!/bin/bash
# Has a secret in its environment and in its checkpoint directory, and takes its second step when it is released.
echo began
echo "$API_KEY" > "$GAVEL_CHECKPOINT_DIR/secret"
echo "step 1"
echo "$API_KEY"
until [ -e release ]; do sleep 0.2; done
echo "step 2"
