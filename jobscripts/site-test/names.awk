# SPDX-License-Identifier: BSD-3-Clause
# What the other awk programs here share: which names of devices may leave the site.

BEGIN {
	# Names that the kernel or a driver gives. enx and wlx hold an Ethernet address.
	device = "^(lo|eth|en[opsbc][0-9a-f]|ib|ibs|ibp|hsn|hsi|roce|wl[ops]|mlx[45]_|bnxt_re|irdma|efa_|rdmap|hfi1_|cxi|qedr|" \
		"nvml|cuda|opencl|rsmi|ze|card|renderD|controlD|sd|vd|nvme|dax|pmem|dma)[0-9a-z._]*$"
}

# The same stand-in for the same text.
function stand_in(prefix, text) {
	if (!((prefix, text) in known))
		known[prefix, text] = prefix count[prefix]++
	return known[prefix, text]
}

function is_device(name) {
	return name ~ device && name !~ /^wlx/ && length(name) <= 15
}

function safe_device(name) {
	return is_device(name) ? name : stand_in("dev", name)
}
