# Reads the series that scripts/speed makes, and prints the plot.
set terminal svg size 1000,460 fixed font "Helvetica,Arial,sans-serif,13" background "#ffffff" linewidth 1
set multiplot layout 1,2 margins 0.06,0.985,0.15,0.91 spacing 0.075

blue = "#0b62a4"; green = "#1b8a3c"; violet = "#7a3fa0"; orange = "#d9730d"; gray = "#5f6368"
set style line 1 lc rgb blue lw 2.2 pt 7 ps 0.6
set style line 2 lc rgb green lw 2.2 pt 5 ps 0.55
set style line 3 lc rgb violet lw 2.2 pt 9 ps 0.7
set style line 4 lc rgb orange lw 1.6 dt (7,4) pt 6 ps 0.6
set style line 5 lc rgb orange lw 1.6 dt (2,3) pt 4 ps 0.6
set style line 6 lc rgb gray lw 1.6 pt 2 ps 0.6

set border 3 lc rgb "#80868b"
set tics nomirror out scale 0.6 textcolor rgb "#3c4043"
set grid xtics ytics lc rgb "#e3e5e8" lw 0.8 dt solid
set logscale x 2
set xrange [6:6000000]
set xtics ("8" 8, "64" 64, "512" 512, "4 KiB" 4096, "64 KiB" 65536, "1 MiB" 1048576)
set xlabel "bytes of a message" textcolor rgb "#3c4043"
set key top left Left reverse samplen 2.6 spacing 1.15 width -2 textcolor rgb "#202124"

set title "Latency, µs" offset 0,-0.4
set logscale y 10
set yrange [1:20000]
set key at graph 0.02,0.69
plot "write_lat" with linespoints ls 1 title "softverbs write", \
    "send_lat" with linespoints ls 2 title "softverbs send", \
    "read_lat" with linespoints ls 3 title "softverbs read, there and back", \
    "put_lat" with linespoints ls 4 title "UCX put", \
    "get_lat" with linespoints ls 5 title "UCX get, there and back", \
    "tcp_lat" with linespoints ls 6 title "bare TCP"

set title "Bandwidth, GB/s"
unset logscale y
set yrange [0:*]
set key at graph 0.02,0.99
plot "write_bw" with linespoints ls 1 title "softverbs write", \
    "send_bw" with linespoints ls 2 title "softverbs send", \
    "read_bw" with linespoints ls 3 title "softverbs read", \
    "put_bw" with linespoints ls 4 title "UCX put", \
    "get_bw" with linespoints ls 5 title "UCX get", \
    "tcp_bw" with linespoints ls 6 title "bare TCP"
