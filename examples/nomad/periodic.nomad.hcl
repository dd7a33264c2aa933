# A nightly backup on each node, on two nodes at once. Before Nomad 1.6.2 write `cron = "0 1 * * *"`; `sysbatch` needs 1.2.
job "backup" {
  type = "sysbatch"

  periodic {
    crons     = ["0 1 * * *"]
    time_zone = "Europe/Berlin"
    # Of the whole job. Overlapping backups of two nodes are what the semaphore limits.
    prohibit_overlap = true
  }

  group "backup" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "backup" {
      driver = "raw_exec"

      config {
        command = "/usr/bin/slotkeeper"
        args = [
          "run", "service/backup", "--limit", "2", "--timeout", "4h", "--quiet", "--stop-after", "20s",
          "--", "/bin/sh", "${NOMAD_TASK_DIR}/backup.sh",
        ]
      }

      env {
        CONSUL_HTTP_ADDR = "127.0.0.1:8500"
      }

      template {
        destination = "local/backup.sh"
        data        = <<-END
          echo "backing up on slot $SLOTKEEPER_SLOT"
          sleep 1
        END
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
