# SPDX-License-Identifier: BSD-3-Clause
# berth info --json | awk -f names.awk -f nics.awk: one line per NIC, as berth sees it; no addresses.

/^    "nics": \[/ { on = 1 }
/^    \]/ { on = 0 }
on && match($0, /^ *"(net|rdma|port|kind|state|speed|numa|management)": /) {
	key = $1
	text = $2
	gsub(/[":,]/, "", key)
	gsub(/[",]/, "", text)
	if (key == "net" || key == "rdma")
		text = text == "" || text == "null" ? "-" : safe_device(text)
	else if (text !~ /^[a-z0-9-]*$/)
		text = "?"
	line = line (line == "" ? "" : " ") key " " text
}
on && /^      \}/ {
	print line
	line = ""
}
