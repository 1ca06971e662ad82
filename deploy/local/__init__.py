"""A broker and a whole Flink cluster as processes of this machine, without Docker.

Everything listens on 127.0.0.1 alone and lives in one directory. Real processes, so that they can
be killed: `python -m deploy.local` is a demonstration and a place to develop, and `tests/cluster`
takes the same classes apart. Linux only: processes are found in /proc.

    __main__       the command: up, down, status
      stack        what `up` leaves behind: keeps all of it alive, until it is told to end
        broker     Kafka, one node
        cluster    JobManager, TaskManagers, their ZooKeeper; killed and started at will
          zookeeper
          flink    command lines of Flink's processes
          kept     a process that is started again when it ends
            processes    a child process that takes all it started with it; found, named, ended
              guard      ends them when we can no longer
    errors         refusals
"""
