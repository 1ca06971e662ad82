"""What runs: the Flink scoring job with its sources and sinks, the simulator, the command line.

Everything here may touch the outside: files, clocks, processes, Flink. It decides nothing about
records; that is the transition in `operators`, which imports none of this.

    cli, cli_cluster       the command; each of its commands calls one of the next
      check                what a spec and its model would do, as tables
      preflight            what a job needs, looked at before it starts (findings: how it is told)
      simulate             a recorded log of any size (simulate_records: its JSON)
      run                  a recorded log through the embedded Flink job, in the order below
      live                 live topics through the embedded Flink job
      deployment           a job on a cluster: submitted, watched, stopped, replaced
      publish, republish   a recorded log into a topic; a topic into another one
      heartbeat            times written into quiet partitions
    exits, progress        how a command ends, and what it says meanwhile
    report                 run.json, and the summary of it

    Kafka and clusters
      kafka_client         how a Kafka is reached, for Flink and for the tools here
      topics               partitions, log ends, settings, newest records
      kafka_job            the live job of a spec: its names, and where it starts
      savepoint_state      the positions in a savepoint, read without Flink
      flink_rest           a cluster, by its REST interface
      releases             code, models and spec as they are shipped, kept to be put back
      jars                 finds the Kafka connector
      kafka_main           the job's program where Flink itself starts it

    run
      log_files            the recorded log becomes one file for each partition
      java                 finds what runs Flink
      flink_process        starts Flink in a process of its own and gives it jobs
      flink_main           that process; what it says of a failure is cut by flink_failure
        flink_settings     every setting that is not Flink's own, with its reason
        pipeline           the job, read as its diagram: source, pack, key_by, score, unnest, sinks
          file_tables      its ends on files; kafka_tables: on topics
          pack             records become one packed row for each partition
          shard_keys       the Flink key of each partition, spread evenly over subtasks
          operator         score: a shard's state between Flink and the transition
          uids             a stable uid for every operator, by which state is found again
"""
