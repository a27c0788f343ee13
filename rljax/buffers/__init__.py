"""What batches are drawn from: replays, rollouts, data sets, and how a batch is drawn."""
