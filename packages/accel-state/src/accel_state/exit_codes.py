"""The exit codes by which a process tells its launcher more than that it failed."""

#: it was asked to stop, has saved, and goes on where it was when it is started again
STOPPED = 75
#: it ended the job, because ranks waited in vain
HUNG = 70
