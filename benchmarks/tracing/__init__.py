"""Jobs with one injected cause, the recorder of their traces, and the list of cases."""
