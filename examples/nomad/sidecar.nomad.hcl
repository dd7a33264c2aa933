# For a task whose command cannot be changed: an agent beside it holds the slot, and a task that waits keeps it from starting.
#
# 1. `slotkeeper` and `wait` start. `slotkeeper` enters the queue.
# 2. `wait` ends when the slot is held, or after 6 hours with 75, which fails the allocation.
# 3. `import` runs.
# 4. When it has ended, Nomad ends `slotkeeper`, which releases the slot.
#
# To end or move a running allocation: `nomad alloc stop`. `nomad alloc restart` starts `import` again without a slot.
job "import-sidecar" {
  type = "batch"

  group "import" {
    network {
      port "slotkeeper" {}
    }

    # An agent that Nomad restarts after a lost slot would wait for the next one while `import` runs without one.
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "slotkeeper" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/usr/bin/slotkeeper"
        args    = ["agent", "--config", "${NOMAD_TASK_DIR}/slotkeeper.yaml"]
      }

      template {
        destination = "local/slotkeeper.yaml"
        data        = <<-END
          semaphores:
            - name: writers
              prefix: service/warehouse/writers
              limit: 5
              # The form that `slotkeeper run` and `consul lock` write.
              format: map
              # A lost slot ends the agent with 80. Nomad then kills the other tasks of the allocation.
              on_lost: exit
        END
      }

      env {
        CONSUL_HTTP_ADDR       = "127.0.0.1:8500"
        SLOTKEEPER_HTTP_LISTEN = "127.0.0.1:${NOMAD_PORT_slotkeeper}"
      }

      # Longer than drain.timeout, which is 25s. The client's max_kill_timeout is 30s by default.
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      resources {
        cpu    = 20
        memory = 32
      }
    }

    task "wait" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/usr/bin/slotkeeper"
        args    = ["wait", "--timeout", "6h"]
      }

      env {
        SLOTKEEPER_HTTP_LISTEN = "127.0.0.1:${NOMAD_PORT_slotkeeper}"
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }

    task "import" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["${NOMAD_TASK_DIR}/import.sh"]
      }

      template {
        destination = "local/import.sh"
        data        = <<-END
          echo importing
          sleep 1
        END
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
