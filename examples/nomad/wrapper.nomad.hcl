# Two hundred dispatches of this job, and five imports at once. Each import runs under `slotkeeper run`, which starts it once
# it has one of the five slots:
#
#   nomad job run wrapper.nomad.hcl
#   nomad job dispatch -meta table=orders import
job "import" {
  type = "batch"

  parameterized {
    meta_required = ["table"]
  }

  group "import" {
    # A failed run is not repeated here. By default, Nomad places a batch job once more, on another node if there is one.
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "import" {
      # Or exec; or docker and podman, with an image that has slotkeeper.
      driver = "raw_exec"

      config {
        command = "/usr/bin/slotkeeper"
        args = [
          "run", "service/warehouse/writers", "--limit", "5", "--timeout", "6h",
          "--name", "import ${NOMAD_META_table}",
          # Nomad kills what is left after kill_timeout, also slotkeeper. So the command ends before that.
          "--stop-after", "20s",
          "--", "/bin/sh", "${NOMAD_TASK_DIR}/import.sh",
        ]
      }

      env {
        CONSUL_HTTP_ADDR = "127.0.0.1:8500"
      }

      template {
        destination = "local/import.sh"
        data        = <<-END
          echo "importing $NOMAD_META_table on slot $SLOTKEEPER_SLOT"
          sleep 1
        END
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      # What the command needs, and 16 MB for slotkeeper.
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
