"""What one deploys: the chart, the image, the proxies, the alerts and the dashboards."""
