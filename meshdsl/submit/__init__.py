"""What a cluster is given so that it runs `meshdsl train` on several machines.

    submission.py   what is to be run, and how many machines it wants
    slurm.py        a batch script for SLURM
    kubernetes.py   manifests of a Job or a JobSet

They make text and need no cluster. `commands.submit` hands the text over.
"""
