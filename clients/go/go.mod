module github.com/slotkeeper/slotkeeper/clients/go

go 1.22
