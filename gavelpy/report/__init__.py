"""Tables, figures and the HTML report over results of simulations. Knows the shape of a result, not who made it."""
