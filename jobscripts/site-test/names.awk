# SPDX-License-Identifier: BSD-3-Clause
# What the other awk programs here share: which names of devices may leave the site.

BEGIN {
	# Names that the kernel, udev or a driver gives: a host called login1 or zeus is none. enx and wlx hold an Ethernet address.
	device = "^(lo|(eth|ib|hsn|hsi|roce|mlx[45]_|mlx5_bond_|bnxt_re|irdma|efa_|hfi1_|cxi|qedr|nvml|cuda|rsmi|ze|card|renderD|" \
		"controlD|pmem|sr)[0-9]+[a-z]?|dma[0-9]+chan[0-9]+|opencl[0-9]+d[0-9]+|dax[0-9]+|sd[a-z][a-z]?[0-9]*|vd[a-z]|" \
		"nvme[0-9]+(c[0-9]+)?(n[0-9]+)?|" \
		"(en|ib|wl|roce|rdma)(P[0-9]+)?[opscb][0-9]+(s[0-9]+)?(f[0-9]+)?(n?[pd][0-9]+|n[0-9]+|v[0-9]+)*)([.][0-9a-f]+)?$"
}

# The same stand-in for the same text.
function stand_in(prefix, text) {
	if (!((prefix, text) in known))
		known[prefix, text] = prefix count[prefix]++
	return known[prefix, text]
}

function is_device(name) {
	return name ~ device && length(name) <= 15
}

function safe_device(name) {
	return is_device(name) ? name : stand_in("dev", name)
}
