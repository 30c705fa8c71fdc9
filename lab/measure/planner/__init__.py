"""What a server would do at another rate, batch size, delay, precision, number of replicas: a model of it, calibrated
on runs, with its error beside it. Everything here is modelled; whoever shows it says so."""
